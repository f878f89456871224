"""ONNX importer: files without weights, shape inference, and costs of operators."""
