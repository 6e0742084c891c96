--[[ tick: a worker reports the instants of schedules, and gets schedules that are due.

A claim that finds `tick|` due reports this to its worker, which then calls `tick`, first without records. The worker
gets up to HAND_MAX schedules that are due, and for 5 s no other worker gets them. It computes, for each, which instant
is fired now and which instant is next, and calls `tick` again.

EXPECTED is the schedule's next instant as the worker got it. FIRED is the instant whose job is enqueued (0: none, since
all instants that have passed are missed). NEXT_MS is the instant after it (0: the worker cannot compute it). MISSED is
the number of missed instants. An instant is accepted only if the schedule is on, if VERSION and EXPECTED are still
those of the schedule, and if it is due by Redis' clock. So each instant is accepted once, whatever workers do. EXPECTED
0 asks for a run now, in addition to all instants; then VERSION -1 means any version.

For a schedule with the overlap rule `replace`, the running job is asked to stop.

Transitions: none -enqueued-> ready, none -enqueued-> scheduled, none -discarded-> none, ready -replaced-> none,
    scheduled -replaced-> none, ready -expired-> none, scheduled -expired-> none, running -cancel_requested-> cancelling
Args: slot number:int by why spec_max:int hand_max:int
Each: name version:int expected:int fired:int next_ms:int missed:int
Uses: call(open_call keep_answer) backlog(refuse_backlog) firing(check_instants decide_instants write_instants)
Returns: ok NOW {NAME fired|skipped|duplicate|missed|undeclared|run|not_run|already|early|later|refused|gone HOLDER}…
    {NAME ENTRY}… | refused audit_backlog BACKLOG BOUND | refused results_full IDS BOUND SETTING | with | epoch. There
    is one outcome for each record; HOLDER is the job, or the scope, that kept the job out, else -. After the outcomes
    come the schedules that the worker gets; ENTRY is without the job. A repeated call gets none
Invariants: I1, I5, I6, I10, I15
]]

local refusal = open_call() or each_count > 0 and refuse_backlog() or check_instants()
if refusal then
  return refusal
end
local answer, handed = decide_instants()

write_instants()
keep_answer(table.concat(answer, ' '))
local reply = {'ok', unpack(answer)}
for i = 1, #handed do
  reply[#reply + 1] = handed[i]
end
return reply
