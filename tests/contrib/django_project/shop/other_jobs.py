from rq_core import App

jobs = App(prefix="other")
