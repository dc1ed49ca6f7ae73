"""Nodes and chains: real, generated, forged, faulty and lying ones."""
