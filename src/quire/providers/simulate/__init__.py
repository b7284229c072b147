"""Prompt caches, simulated: what a sequence of requests reads, writes and costs at each provider and engine."""

from quire.providers.simulate.blocks import Block, Cause, blocks
from quire.providers.simulate.predict import Predicted, Simulator, simulate

__all__ = ["Block", "Cause", "Predicted", "Simulator", "blocks", "simulate"]
