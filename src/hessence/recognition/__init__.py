"""How PyTorch models are read and turned into solvable networks; see ``hessence.recognise``."""
