--[[ restore: what a loss took and what it brought back is put right, as SQL knows it.

`restore`: a job that Redis does not have is enqueued again under its own id, with its counters. LINE is its state line
as it was, ready, scheduled or dead, without its place in line, its due time and since when. One that is ready joins the
tail with a new place in line: its old one may be another job's by now. One that is scheduled is ready if DUE_MS is over.
No rule of a full scope keeps it out, since it was accepted once. One that is alive is left alone. One whose name another job holds that is
not overdue, or whose id is remembered since another one ended, is not put back.
`missing`: the same for a job that the log takes for alive too; a baseline says first that it was not.
`remember`: the id of a job that has ended is remembered again up to DUE_MS; LINE is its field of `results`. An id that is in
use, or is remembered, is left alone. There is no event: nothing happens to a job.
`name`: the name of a job that has ended is held again up to the instant that its LINE says (`stands=until:MS`). One that another job holds is
left alone. There is no event either.
`remove`: a job that had ended and that is alive again goes, if its line still reads LINE. One with a claim in force stays:
its handler may be half-way.

AFTER is the entry of the last restore that the caller knows of, or `-`. If it was another, what the caller read in SQL may
be what that one has put right by now: the call is refused.

Transitions: none -restored-> ready, none -restored-> scheduled, none -restored-> dead, ready -removed-> none,
    scheduled -removed-> none, dead -removed-> none
Meta: restored
Args: slot number:int by why after
Each: id kind due_ms:int line detail spec
Uses: call(open_call close_call) backlog(refuse_backlog) meta(facts set_fact)
    restoring(check_restore decide_restore emit_restore write_restore)
Returns: ok ENTRY {ID restored|removed|remembered|named|known|held|STATE|gone}… | refused audit_backlog BACKLOG BOUND | refused restored ENTRY |
    refused arguments kind | with | epoch. ENTRY is the AFTER of the next call; known: the id is remembered
    already; named: its name is held again; gone: its moment is over, or there is nothing to remove; STATE is that of a job that was left alone
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
