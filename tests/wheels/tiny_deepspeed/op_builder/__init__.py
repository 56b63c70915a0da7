"""A stand-in for DeepSpeed's op builders."""
