"""One pass of the model over a batch: inputs, captured graphs, sampling, where tensors live."""
