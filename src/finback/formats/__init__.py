"""Model file formats: what the bytes of a GGUF, a safetensors file or a block of quantised weights mean.

Owns reading, checking and writing of containers, and the NumPy truth of every block format. Refuses to know
what a tensor is for: the names of a model's tensors are in `formats.names`, their placement in memory in
`finback.weights`.
"""
