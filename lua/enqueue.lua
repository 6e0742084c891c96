--[[ enqueue: a producer hands over jobs. All new ones are accepted together; an id that is live is a duplicate, and
what happens to a job whose scopes are full is said with it. A job that waits past its deadline yields its id (see enqueue/id_overdue).

FULL, which comes in KINDS, is empty (the job waits), or rules: `discard|SCOPE|N` and `reject|SCOPE|N` for a scope that is
full, counting what holds it and what waits in the job's lane, and `most|N` for how many may wait in the lane. N is the cap
in the producer's code, for as long as no worker has stored one; it may be left out.

A unique job has its name behind its digest, after a space (see enqueue/name_requests); one whose id is remembered has there what its call is
compared by (see include/results/idempotency).

KINDS says once what many jobs of the call have in common (see enqueue/kinds.lua); KIND is a place in it, from 1.

Transitions: none -enqueued-> ready, none -enqueued-> scheduled, none -discarded-> none, ready -replaced-> none,
    scheduled -replaced-> none, ready -expired-> none, scheduled -expired-> none
Args: slot number:int by spec_max:int kinds
Each: id kind digest lane spec
Uses: call(open_call close_call) backlog(refuse_backlog) kinds(kinds_from)
    accepting(check_records decide_records emit_records write_records)
Returns: ok {PLACE duplicate|mismatch|discarded|rejected|held|replaced WHAT}… | refused audit_backlog BACKLOG BOUND |
    refused results_full IDS BOUND SETTING | refused arguments kinds|kind|id|digest | with | epoch. PLACE counts the jobs of the call from 1; WHAT is - for a
    duplicate and for a mismatch (a duplicate whose task or arguments are others), the job that holds the name of one that is held, the job that was replaced by one that was accepted, else the scope
Invariants: I1 (the outbox entry and the jobs are one write), I6, I10
]]

local refusal = open_call() or refuse_backlog()
if refusal then
  return refusal
end
local kind_of = kinds_from(kinds)
if not kind_of then
  return {'refused', 'arguments', 'kinds'}
end
refusal = check_records(each_count, each, kind_of)
if refusal then
  return refusal
end
local answer = decide_records()

emit_records()
write_records()
return close_call(answer)
