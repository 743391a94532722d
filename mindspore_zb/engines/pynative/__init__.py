"""The PyNative engine: drives MindSpore's own autograd graph. Start reading at ``recording.py``."""
