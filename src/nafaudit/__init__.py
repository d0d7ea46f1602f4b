"""nafaudit: is a copyright-protecting decoder's promise kept, tested, and worth anything?

The nouns, and where they live:

* `nafaudit.core`: designs, draws, ledgers, trajectories, findings (NumPy only)
* `nafaudit.workload`: prompts in named classes
* `nafaudit.store`: the run directory
* `nafaudit.measures`: records in, findings out
* `nafaudit.mechanisms`: served laws
* `nafaudit.models`: loading a pair of models
* `nafaudit.engine`: decoding
* `nafaudit.runner`: design in, findings out

Importing this package imports none of them; torch is needed from `mechanisms` on. It only asks for
reproducible matrix products (`nafaudit.core.numerics`), before torch computes any.
"""

from nafaudit.core.numerics import ask

ask()

__version__ = "0.1.0"
