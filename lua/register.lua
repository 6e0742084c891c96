--[[ register: a worker says how jobs of its tasks are treated, so that producers that know a task only by name give its
jobs the same scopes. The policy stays when the worker ends. If the policies of workers differ, the policy of the worker
that started last is stored.

Flags: allow-oom
Keys: tasks wake
Args: slot number:int by
Each: task policy
Unread: wake
Uses: call(open_call close_call now) emit(emit_queue quoted) batch(call_many read_many)
Returns: ok {TASK changed|same}… | epoch
Invariants: I5
]]

local refusal = open_call()
if refusal then
  return refusal
end
local names = {}
for i = 1, each_count do
  names[i] = each(i)
end
local stored = read_many(tasks, names)
check_keys()

local fields, events, answer = {}, {}, {}
for i = 1, each_count do
  local task, policy = each(i)
  local outcome = stored[i] == policy and 'same' or 'changed'
  if outcome == 'changed' then
    fields[#fields + 1], fields[#fields + 2] = task, policy
    events[#events + 1] = '["task=' .. task .. '",' .. quoted(stored[i] and 'registered') .. ',"registered"]'
  end
  answer[#answer + 1], answer[#answer + 2] = task, outcome
end
for i = 1, #events do
  emit_queue('policy_changed', now, by, events[i])
end
call_many('HSET', tasks, fields)
return close_call(answer)
