"""The commands of ``hessence``, one file each."""
