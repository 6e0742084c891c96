--[[ save: the holder of a claim saves what steps of durable jobs have returned, or says which steps it begins, or takes what
its jobs wait for.

An entry is one step, wait or sleep of a job; WHAT is begin or save, wait or sleep, take, or move. The worker numbers a
job's entries 1, 2, 3… A new entry has the next number; a step that was begun is saved under the number that it has.
LIFE is the name of the job's box; a worker makes up the life of a job that has no box yet.

If the entry of a record is in Redis already, begun or saved as the record asks, it is not written again. If Redis has
fewer entries than the worker knows, because a failover took some, the answer is `behind` and the number of its entries.
The worker then sends the missing entries again.

A wait (for a signal of its name) and a sleep last until ABOUT: Unix ms, or `+` and ms from now; empty: without end. This is
fixed when the entry is first written. If a signal waits, the oldest one is taken: its value becomes the entry's, in the
same write. If no signal waits and the moment is over, the entry is saved without a value. Otherwise the answer is
`waits`. If the entry is saved, the answer is `over` and the entry, so that the worker need not read it. A `take` saves
again a wait that had taken signal ABOUT.

A failover may take the box of a claim in force, and a signal may then begin another box. The worker then sends a `move`
alone, with the LIFE that it knows: the box with the signals gets this name, if it has no entries and at most 1,000
signals. The worker sends its entries after that.

A record that is not carried out changes nothing.

Keys: jobs boxes
Later: backlog_jobs backlog_max_jobs
Args: slot number:int worker
Each: id fence life what entry name about
Tail: what the step returned, JSON, or ! and why it is not kept; its note is the digest, after + if the log keeps the value, too
Unread: jobs
Uses: call(open_call close_call) meta(fact) gate(is_log_shut) saving(decide_saves write_saves)
Returns: ok {PLACE over|waits|behind|full|conflict|other|gone|stale HAS}… | refused audit_backlog BACKLOG BOUND | with | epoch. PLACE counts the
    records from 1. Only records that were not carried out are named, and waits and sleeps that are over. HAS is how many
    entries Redis has; for waits it is until when the entry waits, or `-`; for over it is the entry, or `-` if the entry
    has more than 4,096 bytes or the call was sent again. full: the job has 10,000 entries, or its values have 16 MiB;
    conflict: the number is another step's, or none; other: the job has a box of another life
Invariants: I9, I20, I21
]]

local refusal = open_call()
if refusal then
  return refusal
elseif not boxes then
  return {'with', 'durable'}
elseif is_log_shut() then
  -- The step has happened, so the worker repeats the call while it keeps its lease.
  return {'refused', 'audit_backlog', fact('backlog_jobs'), fact('backlog_max_jobs')}
end
check_keys()
local answer, shown = decide_saves()

write_saves()
local reply = close_call(answer)
for at, text in pairs(shown) do
  reply[at + 1] = text   -- the slot does not keep it: after a repeated call, the worker reads the entry
end
return reply
