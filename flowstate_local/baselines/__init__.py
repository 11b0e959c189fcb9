"""Agents under test: FlowState and what it is compared with, behind one Protocol."""
