--[[ prune: an operator removes dead jobs before their retention ends.

Transitions: dead -pruned-> none
Flags: allow-oom
Keys: jobs dead expiring wake
Unread: jobs dead wake expiring
Args: slot number:int by why
Each: id
Uses: call(open_call close_call now) parts(run_parts) emit(emit) jobs_by_id(decide_by_id) dead_index(unindex_dead)
    removal(end_job)
Returns: ok {ID pruned|STATE|gone}… | epoch
Invariants: I6
]]

local refusal = open_call()
if refusal then
  return refusal
end
check_keys()

local events, exhumed = {}, {}
local answer = decide_by_id(function(id, job)
  if job.state == 'dead' then
    events[#events + 1] = '["' .. id .. '"]'
    exhumed[#exhumed + 1] = id
    end_job(id, job, 'dead')
    job.state = 'gone'
    return 'pruned'
  end
end)
run_parts('check')

emit('pruned', now, by, events, why)
run_parts('write')
unindex_dead(exhumed)
return close_call(answer)
