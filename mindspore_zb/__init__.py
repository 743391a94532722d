"""Split the backward pass of any MindSpore computation into dx and dw."""
