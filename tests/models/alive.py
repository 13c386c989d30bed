"""How much memory tensors take."""

import gc

import torch


def bytes_alive():
    """How many bytes all tensors take that are alive."""
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if type(thing) is torch.Tensor)
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
