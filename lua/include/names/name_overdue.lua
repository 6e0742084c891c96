--[[ name_overdue: a job that waits and whose deadline is over begins no more, so it yields its name to a job that asks for it. It waits on
without the name, until a claim comes to it and lets it expire, as it does with any such job. A name that stands until an instant
is not yielded: it stands whatever becomes of the job.

The list `yielded` has what the event `freed` says of each, `yielded_lines` ids and lines.

Keys: state
Lists: yielded yielded_lines
Uses: call(now now_text) parts(list_of) state(write_line) deadline(is_over) emit(emit quoted) batch(call_many)
]]

local lists = {}

--- Whether a job that has this name in `slots` yields it. `job` is its record; nil if there is none.
local function is_yielding(job, name)
  return job and job.unique == name and (job.state == 'ready' or job.state == 'scheduled') and is_over(job, now) and
    (job.stands or ''):sub(1, 6) ~= 'until:'
end

--- A job yields its name.
local function yield_name(id, job)
  local yielded, lines = list_of(lists, 'yielded'), list_of(lists, 'yielded_lines')
  yielded[#yielded + 1] = '["' .. id .. '",' .. quoted(job.unique) .. ']'
  job.unique, job.stands = nil, nil
  lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
end

local function append(actor)
  emit('freed', now_text, actor, lists.yielded)
end

--- It comes before jobs leave: one that has yielded its name may be among them.
local function write()
  call_many('HSET', state, lists.yielded_lines)
end
