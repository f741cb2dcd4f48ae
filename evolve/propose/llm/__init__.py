"""Language models as proposers: what they are shown, what they answer, what it costs, and what becomes of it.

From the inside out: `book` reads and writes the journal's lines about calls, `client` is the only module that knows
litellm, `dial` carries calls out, `prompt` and `answer` are pure text, `desk` does a generation of proposals. Nothing
here is imported by an offline run.
"""
