"""The shipped training: TAEHV, a tiny autoencoder of video latents, on accelerate and DeepSpeed.

``config`` imports nothing heavy, so that a launcher may read a training's settings without torch.
"""
