"""Language models as proposers: their prompts, their answers, and what the calls cost.

From the inside out: `client` sends one request and is the only module that knows litellm. `calls` defines the journal's
lines about calls. `dispatch` carries calls out within the limits. `prompt` and `answer` turn populations into text and
text into programs. `proposer` asks for a generation of proposals. An offline run imports no litellm.
"""
