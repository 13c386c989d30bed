"""Every statement of the papers, judged by computation.

::

    hessence claims
    hessence claims 000-T3.1 E-003-outliers --json

A claim is a sentence, the place where a paper makes it, and a check. The check compares the
statement with something that does not know it (a dense Hessian from the loss's own definition, its
eigenvalues by LAPACK) at a number of points, and the verdict follows from the gaps; none is written
down. A statement that is right only on a condition that its sentence does not make *holds if* that
condition does: it holds in all cases within it and fails in some without. What the papers measured
is measured again, on networks small enough for all their eigenvalues to be found in seconds; the
evidence says how small. NumPy is all that it takes. Experiments judge many of the same statements
on larger networks: :mod:`hessence.papers.judgements` joins what they found to one verdict.

To add a claim, write a function that returns a :class:`Verdict`, mostly by :func:`judge`, and add
``Claim(id, where, says, function)`` to the ``CLAIMS`` of the file on its subject; a new file goes
into the ledger's ``MODULES`` as well. The papers are numbered as in the figures' names; ``E-``
marks a misprint or mistake, as it is printed, and ``A-`` our answer to a question that a paper
leaves open.
"""

from hessence.papers.claims.protocol import Claim, Verdict, judge

__all__ = ["Claim", "Verdict", "judge"]
