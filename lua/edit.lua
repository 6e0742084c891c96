--[[ edit: an operator or a producer changes when jobs that wait will run: their priority, their due time, their deadline.

PRIORITY is a name. DUE and EXPIRES are Unix ms, or `+` and ms from now; `+0` is at once. EXPIRES `-` takes the deadline away. What is empty
stays as it is. LINE is
the state line on which the change rests; empty: whichever the job has.

A job that gets another priority joins the tail of that line, in the lane of that priority if it has one. A job that is to
run now returns to its old place, if it had one.

Transitions: ready -edited-> ready, ready -edited-> scheduled, scheduled -edited-> ready, scheduled -edited-> scheduled
Args: slot number:int by why priority due expires
Each: id line
Uses: call(open_call close_call) backlog(refuse_backlog) editing(check_edit decide_edit write_edit)
Returns: ok {ID edited|same|changed|never|running|cancelling|dead|gone}… | refused audit_backlog BACKLOG BOUND |
    refused arguments priority|due|expires | epoch. changed: its line is another one; never: it could begin at its
    deadline at the earliest
Invariants: I6, I8, I10, I19
]]

local refusal = open_call() or refuse_backlog() or check_edit(priority, due, expires)
if refusal then
  return refusal
end
local answer = decide_edit()

write_edit()
return close_call(answer)
