"""LLMs behind serving engines: requests and answers of kind `serving`, over the step times of predicted operators."""
