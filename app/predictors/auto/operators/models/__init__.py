"""What is learned of operators, as flat arrays that compiled code reads."""
