"""Modes in which PyTorch is measured: those that its users try on a CPU."""

from ...cython_src.errors import UsageError, check_choice
from ...cython_src.networks.layers import Network

# eager          PyTorch's default; attention of tokens as a product, a masked softmax and a product
# channels_last  channels of images in the innermost dimension
# sdpa           attention of tokens through scaled_dot_product_attention
# compile        compiled by torch.compile; attention of tokens as in sdpa
MODES = ("eager", "channels_last", "sdpa", "compile")
MODES_OF_IMAGES = ("eager", "channels_last", "compile")
MODES_OF_TOKENS = ("eager", "sdpa", "compile")


def modes_of(network: Network) -> tuple[str, ...]:
    """Return the modes that have a meaning for a network."""
    return MODES_OF_TOKENS if network.tokens else MODES_OF_IMAGES


def check_modes(network: Network, modes: tuple[str, ...]) -> None:
    """Raise `UsageError` for a mode that PyTorch has not, or that has no meaning for a network."""
    for mode in modes:
        check_choice("a PyTorch mode", mode, MODES)
        if mode not in modes_of(network):
            kind = "tokens" if network.tokens else "images"
            raise UsageError(
                f"PyTorch's mode {mode!r} has no meaning for networks of {kind}, such as {network.name!r}; choose from "
                f"{', '.join(modes_of(network))}"
            )
