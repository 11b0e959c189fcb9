"""Open weights: a catalogue of small models, where they come from, and how they become loadable folders."""

from flowstate_local.models.catalogue import CatalogueEntry, Precision, list_models
from flowstate_local.models.lookup import resolve
from flowstate_local.models.progress import Progress
from flowstate_local.models.weights import fetch

__all__ = ["CatalogueEntry", "Precision", "Progress", "fetch", "list_models", "resolve"]
