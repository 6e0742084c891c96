--[[ free: an operator frees names of unique jobs. A job that holds such a name continues without it, if it has not
ended, and another job may take the name.

Flags: allow-oom
Keys: state expiring slots
Unread: state expiring
Args: slot number:int by why
Each: name
Uses: call(open_call close_call now) emit(emit quoted) state(read_line write_line) names(name_field name_mark holder_in) batch(call_many read_many)
Returns: ok {NAME JOB|-}… | epoch. JOB held the name; -: no job did
Invariants: I13
]]

local refusal = open_call()
if refusal then
  return refusal
end
check_keys()

local names, fields = {}, {}
for i = 1, each_count do
  names[i] = each(i)
  fields[i] = name_field(names[i])
end
local holders = read_many(slots, fields)
local held, freed, marks = {}, {}, {}
local names_held, answer = {}, {}
for i = 1, each_count do
  local name, holder = names[i], holder_in(holders[i], now)
  answer[2 * i - 1], answer[2 * i] = name, holder or '-'
  if holder and not names_held[name] then
    names_held[name] = true
    held[#held + 1], freed[#freed + 1], names_held[#names_held + 1] = holder, fields[i], name
    marks[#marks + 1] = holders[i] ~= holder and name_mark(name) or nil
  end
end
local held_lines = read_many(state, held)
local events, lines = {}, {}
for k = 1, #held do
  local id, name = held[k], names_held[k]
  local job = read_line(held_lines[k])
  events[k] = '["' .. id .. '",' .. quoted(name) .. ']'
  if job and job.unique == name then
    job.unique, job.stands = nil, nil
    lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
  end
end

emit('freed', now, by, events, why)
call_many('HSET', state, lines)
call_many('HDEL', slots, freed)
call_many('ZREM', expiring, marks)
return close_call(answer)
