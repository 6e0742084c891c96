--[[ requeue: an operator gives dead jobs another life: their failures and losses are forgotten, their claims are
counted on, and they join the tail of the line. They have no deadline any more. A unique job that holds its name until it ends takes it
again; if another job holds it, the job stays dead.

Transitions: dead -requeued-> ready
Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled dead outbox slots expiring wake
Later: sequence
Unread: dead jobs expiring
Args: slot number:int by why
Each: id
Uses: call(open_call close_call now) emit(emit) state(write_line) meta(fact set_fact) named(decide_named) joining(join write_joining)
    lane_write(check_lanes write_lanes) dead(unindex_dead) names(name_field name_mark holder_in) batch(call_many)
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
local names_taken, names_here, marks = {}, {}, {}
local answer = decide_named(function(id, job)
  if job.state == 'dead' then
    local field = job.unique and not job.stands and name_field(job.unique)
    local value = field and redis.call('HGET', slots, field)
    if field and (names_here[field] or holder_in(value, now)) then
      return 'held'
    elseif field then
      names_here[field] = true
      names_taken[#names_taken + 1], names_taken[#names_taken + 2] = field, id
      marks[#marks + 1] = value and name_mark(job.unique) or nil
    end
    seq = seq + 1
    job.state, job.seq, job.since = 'ready', seq, now
    job.failed, job.lost, job.unknown, job.reason, job.expires = nil, nil, nil, nil, nil
    events[#events + 1] = '["' .. id .. '",' .. seq .. ']'
    revived[#revived + 1] = id
    lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
    join(id, job)
    return 'requeued'
  end
end)
check_lanes()

emit('requeued', now, by, events, why)
call_many('HSET', state, lines)
unindex_dead(revived)
call_many('HSET', slots, names_taken)
call_many('ZREM', expiring, marks)
write_joining()
write_lanes()
if #revived > 0 then
  set_fact('sequence', seq)
end
return close_call(answer)
