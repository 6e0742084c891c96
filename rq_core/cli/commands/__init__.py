"""The commands of ``rq-core``: a module for each subject, imported when one of its commands is used."""
