--[[ edit: an operator or a producer changes when jobs that wait will run: their priority, their due time, their
deadline.

PRIORITY is a name. DUE and EXPIRES are Unix ms, or `+` and ms from now; `+0` is at once. EXPIRES `-` removes the
deadline. An empty argument leaves an option unchanged. LINE is the state line that the caller expects; empty: the job
is edited whatever its line.

A job with a new priority joins the tail of the jobs of that priority, in a lane of that priority if it is in a lane. A
job that becomes ready returns to its old place in line, if it had one.

Transitions: ready -edited-> ready, ready -edited-> scheduled, scheduled -edited-> ready, scheduled -edited-> scheduled
Args: slot number:int by why priority due expires
Each: id line
Uses: call(open_call close_call) backlog(refuse_backlog) editing(check_edit decide_edit write_edit)
Returns: ok {ID edited|same|changed|never|running|cancelling|dead|gone}… | refused audit_backlog BACKLOG BOUND |
    refused arguments priority|due|expires | epoch. changed: the job has another line; never: the job would become ready
    at its deadline or later
Invariants: I6, I8, I10, I19
]]

local refusal = open_call() or refuse_backlog() or check_edit(priority, due, expires)
if refusal then
  return refusal
end
local answer = decide_edit()

write_edit()
return close_call(answer)
