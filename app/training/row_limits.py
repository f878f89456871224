"""Most rows that evaluations learn from and are scored on; apart from them, so that options can show them at once."""

# Rows of each operator, dtype and GPU that teach where a GPU is held out (errors on another GPU change little with more
# of them) or configurations: time is bounded, and fewer rows err a little more, not less.
MOST_LEARNED = 1000
# Rows of each operator, dtype and GPU that teach beside few shapes of the GPU held out: of one software stack there are
# then enough for trees.
MOST_TRAIN = 600
# Rows of each operator, dtype and GPU that are scored.
MOST_TEST_ROWS = 4_000
