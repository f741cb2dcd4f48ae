"""Language models as proposers: their prompts, their answers, and the cost of the calls.

From the inside out: `client` sends one request and is the only module that knows litellm. `calls` defines the journal's
lines about calls, `dispatch` carries calls out within the limits, `ledger` lists them. `prompt` turns populations into
text, `terms` says what terms were worth; `sources` reads the user's files, `library` finds passages in them, and
`documents` quotes both. `answer` and `reading` turn text into programs. `question` asks for them in rounds, `gates`
sends ideas back before a fit, `panel` has programs judged, and `proposer` makes generations of them. `configured` finds
the models of the environment, `setup` prepares a run, `preview` shows single questions. An offline run imports no
litellm.
"""
