--[[ enqueue: a producer hands over jobs. All new jobs are accepted together. A job whose id is live or remembered is a
duplicate. A job that waits past its deadline yields its id (see enqueue/id_overdue).

FULL, a part of KINDS, is empty (the job waits for a full scope), or has rules: `discard|SCOPE|N` and `reject|SCOPE|N`
for a full scope, which count the jobs that hold it and those that wait in the job's lane; and `most|N` for the number
of jobs that may wait in the lane. N is the cap in the producer's code; it holds while no worker has stored a cap, and
may be left out.

The digest of a unique job is followed by a space and its name (see enqueue/name_requests). The digest of a job whose id
is remembered is followed by the digest by which calls are compared (see include/results/idempotency).

KINDS has the parts that many jobs of the call have in common, and perhaps the reason of the call (see enqueue/kinds);
KIND is a place in it, from 1.

Transitions: none -enqueued-> ready, none -enqueued-> scheduled, none -discarded-> none, ready -replaced-> none,
    scheduled -replaced-> none, ready -expired-> none, scheduled -expired-> none
Args: slot number:int by spec_max:int kinds
Each: id kind digest lane spec
Uses: call(open_call close_call) backlog(refuse_backlog) kinds(kinds_from)
    accepting(check_records decide_records emit_records write_records)
Returns: ok {PLACE duplicate|mismatch|discarded|rejected|held|replaced WHAT}… | refused audit_backlog BACKLOG BOUND |
    refused results_full IDS BOUND SETTING | refused arguments kinds|kind|id|digest | with | epoch. PLACE counts the
    jobs of the call from 1; WHAT is - for a duplicate, and for a mismatch (a duplicate with another task or other
    arguments); for held, the job that holds the name; for replaced, the job that was replaced by an accepted one; else
    the scope
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

emit_records(kind_of[0])
write_records()
return close_call(answer)
