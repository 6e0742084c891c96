--[[ signal: a producer or an operator sends signals to durable jobs. A signal waits in the job's box until a wait of that
name takes it; a parked job that waits for it is woken.

LIFE is the name of the job's box if the job has none yet. With the name of a wait for a child, LIFE is the box of the
child's parent, and a job with another box, or without one, is `gone`. Such a signal is not sent to a parent that is
parked and waits for another child. A signal with a KEY that came before is not sent again. VALUE is what the signal
brings, as JSON, and DIGEST its digest; the log has values of up to VALUE_MAX bytes.

A record with an empty NAME sends nothing. It wakes its job if the job is parked and a signal for which it waits is
there: the doctor asks for that after a script was broken off.

Transitions: parked -woken-> ready
Keys: boxes
Args: slot number:int by why value_max:int
Each: id name key life digest value
Uses: call(open_call close_call) backlog(refuse_backlog) signalling(check_signals decide_signals write_signals)
Returns: ok {PLACE sent|woken|waits|known|full|lost|gone NUMBER}… | refused audit_backlog BACKLOG BOUND | with | epoch. PLACE
    counts the records from 1; NUMBER is the signal's number among those of its job. full: the job has had 10,000
    signals, or its values have 16 MiB; lost: Redis has lost the job's box; waits: nothing was sent, and the job was not
    woken
Invariants: I6, I21, I23
]]

local refusal = open_call()
if refusal then
  return refusal
elseif not boxes then
  return {'with', 'durable'}
end
refusal = refuse_backlog()
if refusal then
  return refusal
end
check_signals()
local answer = decide_signals()

write_signals()
return close_call(answer)
