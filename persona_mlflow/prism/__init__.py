"""PRISM: does a response fit its persona (P2, arXiv 2608.26674)?"""
