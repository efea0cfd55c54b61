"""The commit log: transactions over HTTP become batches in an object store, in one total order.

One process leads at a time. Read in this order:

1. ``format``: transactions, the batch object byte by byte, and the chain rules that say which objects are the log.
2. ``leadership``: recovery, which lists the store once, the claim, and the takeover from another leader.
3. ``stages``: a commit goes through sequence (its version), resolve (conflicts), persist (one slot per batch) and
   release (the response). ``stages.pipeline`` joins the four; it is pure and returns effects.
4. ``service``: carries out the effects on one event loop. ``window`` is the conflict window, in which resolve searches.
5. ``reading`` and ``subscription``: readers, change streams, attempts of earlier leaders, and the scrub, which reads
   the whole log again to find damage.

The loop of a driver (a caller of the pipeline, for example ``service``), without timers and tasks::

    pipeline = Pipeline(claim, nonce_seed, rules, now())
    for event in inbox:
        for effect in pipeline.step(event):
            carry_out(effect)  # a Put, for example; its result becomes the event PutAnswered
"""
