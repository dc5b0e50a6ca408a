"""Images and labels of a step, gathered into the layout of the first layer."""
