--[[ unqueue: removes jobs that wait from their lane, their list or `scheduled`. A plain list keeps the entry of a
removed job as a tombstone, which a claim skips, so removing costs the same at any depth.

The list `placeless` has the jobs' members of `scheduled`, whether they exist or not; `buried` has the ids that leave a
tombstone in a plain list.

Keys: scheduled
Later: tombstones
Unread: scheduled
Lists: buried placeless
Uses: parts(list_of) state(count) meta(fact set_fact read_now) batch(call_many) lane_names(member_of)
    lane_states(lane_of stand) lane_fair(is_fair) lane_members(remove) lane_opening(moved_on)
]]

local lists = {}

--- Remove a job from its place. If its lane was open, the next job in it, or the next lane, may be served now.
local function unqueue(id, job)
  local placeless = list_of(lists, 'placeless')
  placeless[#placeless + 1] = 'job|' .. id
  if job.state == 'ready' and job.lane then
    local lane = lane_of(job.lane)
    local was_open = lane.where == 'open'
    remove(lane, member_of(lane, count(job, 'seq'), id))
    if was_open then
      if lane.where == 'open' and is_fair() then
        stand(lane)
      end
      moved_on(lane)
    end
  elseif job.state == 'ready' then
    local buried = list_of(lists, 'buried')
    buried[#buried + 1] = id
    read_now('tombstones')
  end
end

local function check()
  check_keys()
end

local function write()
  call_many('ZREM', scheduled, lists.placeless)
  if lists.buried then
    set_fact('tombstones', fact('tombstones') + #lists.buried)
  end
end
