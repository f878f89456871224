"""ONNX files to the project's JSON graph: what is left of the file without weights, and shapes bound by dimensions."""
