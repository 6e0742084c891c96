"""Pictures of the pages, as SVG without a script, a font of its own or another host.

Each picture has its own background (a card), and a light and a dark set of colours. The browser chooses the set, so the
picture can be read on any page. ``scripts.docs.generate`` writes the pictures, and reports outdated ones.

- ``drawing``: colours, text, boxes and arrows of all pictures.
- ``journey``: a job's way, and a lease that ends.
- ``timelines``: the calls and runs of Throttle, Debounce and Latest; tests make the same calls.
- ``terminal``: the output of ``rq-core top`` for example queues, with its colours.
- ``charts``: rq-core beside other queues, from the figures of the last full run.
- ``board``: the Grafana dashboard: its own panels, drawn with recorded values.
- ``record``: records these values from a Prometheus, by hand.
- ``gallery``: the pictures of these modules, by file name.
- ``shots``: screenshots of the web page, taken by hand with ``scripts/site --shots``.
"""
