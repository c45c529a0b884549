"""Clusters as edited -> what other programs read: one file a family of formats, one registry (`kinds`)."""
