"""The check of plans of networks and graphs of one's own, before they are first measured."""
