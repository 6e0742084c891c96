--[[ restore: after a loss of data in Redis, an operator puts back the lost jobs, and removes the ended jobs that are
alive again, as SQL knows them.

`restore`: a job that Redis does not have is enqueued again under its own id, with its counters. LINE is its last state
line (ready, scheduled or dead), without `seq`, `due` and `since`. A ready job joins the tail with a new place in line,
since another job may have its old place by now. A scheduled job is ready if DUE_MS is over. No rule of a full scope
keeps the job out, since it was accepted once. A job that is alive is not changed. A job is not restored if another job
that is not overdue holds its name, or if its id is remembered because another job of the id has ended.

`missing`: the same for a job that is alive according to the log; a baseline event first says that Redis did not have
it.

`remember`: the id of a job that has ended is remembered again until DUE_MS; LINE is its field of `results`. SPEC is its
result, if the log has it: then DUE_MS is the time until which the result is kept. An id that is in use, or is
remembered, is not changed. There is no event, since no job changes.

`name`: the name of a job that has ended is held again until the instant in its LINE (`stands=until:MS`). A name that
another job holds is not changed. There is no event either.

`entry`: a member of a durable job's box is written again, if the box is lost: an entry, a signal, or the list of a name's
signals. LINE is `entry life=LIFE entries=N bytes=B` with the header's numbers, and `mail=N` if there are signals; DETAIL
is the member's name behind the life, SPEC its value as `boxes` has it. A box that is there is not changed, nor
that of a job with a claim in force. The entries come before their job; if that is not restored, they go after an hour.
There is no event, since the log has them.

`lost`: the same for a signal that no wait had taken, and whose value the log does not have. The signal keeps its number,
as if a wait had taken it, and an event says that its sender must send it again.

`remove`: a job that had ended and is alive again is removed, if its line is still LINE. A job with a claim in force
stays, since its handler may be running.

AFTER is the entry of the last restore that the caller knows, or `-`. If another restore came after that, the call is
refused: the caller may have read in SQL what that restore has changed.

Transitions: none -restored-> ready, none -restored-> scheduled, none -restored-> dead, ready -removed-> none,
    scheduled -removed-> none, parked -removed-> none, dead -removed-> none
Meta: restored
Args: slot number:int by why after
Each: id kind due_ms:int line detail spec
Uses: call(open_call close_call) backlog(refuse_backlog) meta(facts set_fact)
    restoring(check_restore decide_restore emit_restore write_restore)
Returns: ok ENTRY {ID restored|removed|remembered|named|kept|known|held|STATE|gone}… | refused audit_backlog BACKLOG BOUND |
    refused restored ENTRY |
    refused arguments kind | with | epoch. ENTRY is the AFTER of the next call; known: the id is remembered
    already, or the box is there; kept: the entry is written; named: its name is held again; gone: its time is over, or there is nothing to remove; STATE is that of a
    job that was not changed
Invariants: I1, I6, I10
]]

local refusal = open_call()
if refusal then
  return refusal
end
local last = facts.restored or '-'
if after ~= last then
  return {'refused', 'restored', last}
end
refusal = refuse_backlog() or check_restore()
if refusal then
  return refusal
end
local answer = decide_restore(last)

local entry = emit_restore()
write_restore()
if entry then
  answer[1] = entry
  set_fact('restored', entry)
end
return close_call(answer)
