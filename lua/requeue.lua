--[[ requeue: an operator gives dead jobs another life: their failures and losses are forgotten, their claims are
counted on, and they join the tail of the line. They lose their deadline. A unique job that holds its name until it ends
takes the name again. If another job holds the name, the job stays dead, unless the other job waits and its deadline is
over.

Transitions: dead -requeued-> ready
Keys: jobs state dead expiring
Later: sequence
Unread: dead jobs expiring
Args: slot number:int by why
Each: id
Uses: call(open_call close_call now) parts(run_parts) emit(emit) state(write_line) meta(fact set_fact)
    jobs_by_id(decide_by_id) line_tail(join_line write_line_tails) lane_write(check_lanes write_lanes)
    dead_index(unindex_dead) name_requeue(is_name_held retake_name) batch(call_many)
Returns: ok {ID requeued|held|STATE|gone}… | epoch
Invariants: I6, I10
]]

local refusal = open_call()
if refusal then
  return refusal
end
check_keys()

local seq = fact('sequence')
local events, revived, lines = {}, {}, {}
local answer = decide_by_id(function(id, job)
  if job.state == 'dead' then
    job.state = 'ready'
    if is_name_held(id, job) then
      job.state = 'dead'
      return 'held'
    end
    retake_name(id, job)
    seq = seq + 1
    job.state, job.seq, job.since = 'ready', seq, now
    job.failed, job.lost, job.base, job.unknown, job.reason, job.expires = nil, nil, nil, nil, nil, nil
    events[#events + 1] = '["' .. id .. '",' .. seq .. ']'
    revived[#revived + 1] = id
    lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
    join_line(id, job)
    return 'requeued'
  end
end)
check_lanes()
run_parts('check')

run_parts('append', by)
emit('requeued', now, by, events, why)
run_parts('write')
call_many('HSET', state, lines)
unindex_dead(revived)
write_line_tails()
write_lanes()
if #revived > 0 then
  set_fact('sequence', seq)
end
return close_call(answer)
