--[[ tick: a worker reports the instants of schedules, and gets schedules that are due.

A claim that finds `tick|` due says so to its worker, which calls this, first without records. It gets up to HAND_MAX schedules
that are due, and no other worker gets them for 5 s. It computes of each which instant is fired now, and which one is next, and
calls this again.

EXPECTED is the schedule's next instant as the worker got it, FIRED the instant whose job is enqueued (0: none, all that
have passed are missed), NEXT_MS the one after it (0: the worker cannot compute it), MISSED how many instants were passed
over. An instant is accepted only if the schedule is on, and VERSION and EXPECTED are still its own, so each is accepted
once, whatever workers do; and only if it is due by the clock of Redis. EXPECTED 0 asks for a run now, beside all instants; then
VERSION -1 is any.

Of a schedule that asks for it (overlap `replace`), the job that runs is asked to stop.

Transitions: none -enqueued-> ready, none -enqueued-> scheduled, none -discarded-> none, ready -replaced-> none,
    scheduled -replaced-> none, ready -expired-> none, scheduled -expired-> none, running -cancel_requested-> cancelling
Args: slot number:int by why spec_max:int hand_max:int
Each: name version:int expected:int fired:int next_ms:int missed:int
Uses: call(open_call keep_answer) backlog(refuse_backlog) firing(check_instants decide_instants write_instants)
Returns: ok NOW {NAME fired|skipped|duplicate|missed|undeclared|run|not_run|already|early|later|refused|gone HOLDER}…
    {NAME ENTRY}… | refused audit_backlog BACKLOG BOUND | refused results_full IDS BOUND SETTING | with | epoch. One
    outcome for each record; HOLDER is the job, or the scope, that kept the job out, else -. Behind them are the schedules
    that are handed out, ENTRY without the job; a repetition hands out none
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
