"""What follows from the files of a folder: journeys, admissions, batches of steps, cycles, matched requests.

Start with `journeys` (what happened to a request) and `batches` (what ran in a step). `evidence` decides how much of
each prompt was cached, `matching` pairs the client's rows with the server's requests, `requests` puts both together,
and `steps` has the cycles between sampled steps.
"""
