--[[ name_overdue: frees the name of a job that waits past its deadline, for a job that asks for the name. No claim of
the old job may begin, so it yields its name. It continues to wait without the name until a claim reaches it and lets it
expire. A name that is held until an instant is not yielded.

The list `yielded` has the `freed` event's part about each job, `yielded_lines` ids and lines.

Keys: state
Lists: yielded yielded_lines
Uses: call(now now_text) parts(list_of) state(write_line) deadline(is_over) emit(emit quoted) batch(call_many)
]]

local lists = {}

--- Return whether a job that holds this name in `slots` yields it. `job` is its record, or nil.
local function is_yielding(job, name)
  return job and job.unique == name and (job.state == 'ready' or job.state == 'scheduled') and is_over(job, now) and
    (job.stands or ''):sub(1, 6) ~= 'until:'
end

--- Take the name from a job: remove it from the job's line, and log `freed`.
local function yield_name(id, job)
  local yielded, lines = list_of(lists, 'yielded'), list_of(lists, 'yielded_lines')
  yielded[#yielded + 1] = '["' .. id .. '",' .. quoted(job.unique) .. ']'
  job.unique, job.stands = nil, nil
  lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
end

local function append(actor)
  emit('freed', now_text, actor, lists.yielded)
end

--- Write the lines. This runs before jobs are removed, since a job that has yielded its name may be among them.
local function write()
  call_many('HSET', state, lists.yielded_lines)
end
