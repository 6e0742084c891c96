--[[ names: holds and frees the names of unique jobs. A field of `slots` has the job that holds a name, and the instant
until which the name is held, if there is one. A job takes its name when it is accepted, and a retry never takes it
again. The field `stands` of its line says how long the name is held: `claim:MS`, until its first claim (the job is
ready by MS at the latest); `until:MS`, until that instant (Unix ms), even after the job's end; without the field, until
the job ends, however often it is retried.

The list `named` has the fields of `slots` for the names of jobs that end; `named_ids` the ids of these jobs; `freed`
those of the fields whose names these jobs still hold, since another job may hold a name by now.

Fact: ties
Field: unique
Keys: slots
Lists: freed named named_ids
Uses: parts(list_of) batch(call_many read_many)
]]

local lists = {}

--- Return the field of `slots` that says who holds a name. (The name of a slot has no slash, and that of a job has
--- one.)
local function name_field(name)
  return 'unique|' .. name
end

--- Return the member of `expiring` for a name that is held until an instant.
local function name_mark(name)
  return 'name|' .. name
end

--- Return the job that holds a name, by the value of its field; nil if no job holds it, or if its instant is over.
local function holder_in(value, at)
  if not value then
    return nil
  end
  local id, ms = value:match('^(%S+) (%d+)$')
  if ms then
    return tonumber(ms) > at and id or nil
  end
  return value
end

--- Return whether a job with this record holds its name, and the instant until which it does, if there is one.
local function holds_name(job, at)
  if not job.unique then
    return false
  end
  local how, ms = (job.stands or ''):match('^(%l+):(%d+)$')
  if how == 'until' then
    return tonumber(ms) > at, ms
  end
  return job.state ~= 'dead' and not (how == 'claim' and job.claim)
end

--- Note that a job with this name ends, so that the name is freed.
local function decide(id, name)
  local named, ids = lists.named, lists.named_ids
  if not named then
    named, ids = list_of(lists, 'named'), list_of(lists, 'named_ids')
  end
  named[#named + 1], ids[#ids + 1] = name_field(name), id
  return true
end

--- Free the name of a job that is claimed for the first time, if the name is held only until then.
local function give_up_name(id, job)
  if job.stands and job.stands:sub(1, 6) == 'claim:' then
    decide(id, job.unique)
  end
end

local function check()
  local named, ids, freed = lists.named, lists.named_ids, list_of(lists, 'freed')
  local held_by = read_many(slots, named)
  for i = 1, #named do
    if held_by[i] == ids[i] then
      freed[#freed + 1] = named[i]
    end
  end
end

local function write()
  call_many('HDEL', slots, lists.freed)
end
