"""ipexctl: train PyTorch on a handful (or a few hundred) of Xeon and EPYC hosts, over SSH, with a real mpirun."""

__version__ = "0.1.0"
